"""Messages of Envoy's external processing, made by router/proto/generate.sh."""
