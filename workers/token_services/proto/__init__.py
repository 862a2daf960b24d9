"""Messages of OpenEngine's Inference and Control services, made by router/proto/generate.sh."""
