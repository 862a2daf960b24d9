"""The style sheet of a report's page: light, dark, and on paper."""

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5a626d;
--line:#e3e6ea;
--c1:#1f6feb;--c2:#8b95a3;--c3:#c2410c;--c4:#0f8a5f;--accent:#1f6feb;--warn:#b42318;
--fill:#eaf1fd}
@media(prefers-color-scheme:dark){:root{--page:#0f1216;--card:#181c22;--ink:#e8eaed;
--soft:#9aa3af;
--line:#2a3038;--c1:#6ea8fe;--c2:#7d8794;--c3:#f59e6c;--c4:#4cc38a;--accent:#6ea8fe;
--warn:#ff8a7a;
--fill:#1b2636}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:36px 24px 60px}
h1{font-size:27px;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:19px;margin:40px 0 4px}
p{margin:4px 0 12px}.sub{color:var(--soft);margin:0 0 14px;max-width:88ch}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;
margin:22px 0 6px}
.tile,.card,figure{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:14px 16px}.tile b{display:block;font-size:25px;font-weight:650;line-height:1.25}
.tile span{color:var(--soft);font-size:13px;display:block}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr));gap:14px;
margin:12px 0}
figure{margin:0;padding:14px 16px 8px;min-width:0}figcaption{font-weight:600;margin-bottom:2px}
svg{width:100%;height:auto;display:block;font-family:inherit}
.card{padding:16px 18px;margin:12px 0}.advice{border-left:4px solid var(--accent);margin:10px 0}
.advice.urgent{border-left-color:var(--warn)}.advice b{display:block;font-size:16px}
.advice p{margin:3px 0 0;color:var(--soft)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;
font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500;font-size:13px}th:first-child,td:first-child{
text-align:left}.words{text-align:left;white-space:normal;min-width:26em}
tr:last-child td{border-bottom:0}tr.strong td{background:var(--fill);font-weight:600}
.range{color:var(--soft);font-size:12px;margin-left:5px;font-weight:400}
.legend{display:flex;gap:16px;flex-wrap:wrap;font-size:13px;color:var(--soft);margin:2px 0 4px}
.key{display:inline-block;width:18px;height:0;border-top:3px solid;vertical-align:middle;
margin-right:6px}
.key.dashed{border-top-style:dashed}
.key.s1{border-color:var(--c1)}.key.s2{border-color:var(--c2)}
.key.s3{border-color:var(--c3)}.key.s4{border-color:var(--c4)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.dashed{stroke-dasharray:5 4}
.line.s1{stroke:var(--c1)}.line.s2{stroke:var(--c2)}.line.s3{stroke:var(--c3)}.line.s4{
stroke:var(--c4)}
.dot{fill-opacity:.45}.dot.s1{fill:var(--c1)}.dot.s2{fill:var(--c2)}
.dot.s3{fill:var(--c3)}.dot.s4{fill:var(--c4)}.bar.s1{fill:var(--c1)}.bar.s2{fill:var(--c2)}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft)}
.mark{stroke:var(--soft);stroke-dasharray:4 3}.whisker{stroke:var(--ink);stroke-width:1.4}
text{fill:var(--soft);font-size:12px}.middle{text-anchor:middle}.end{text-anchor:end}
text.label,text.value{fill:var(--ink);font-size:13px}text.strong{font-weight:650}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr));
column-gap:36px;font-variant-numeric:tabular-nums}
.facts div{display:flex;justify-content:space-between;gap:16px;padding:6px 0;
border-bottom:1px solid var(--line)}.facts dt{color:var(--soft)}
.facts dd{margin:0;text-align:right;font-weight:550}
.note{color:var(--warn);margin:10px 10px 0;font-size:14px}
footer{margin-top:44px;color:var(--soft);font-size:13px;border-top:1px solid var(--line);
padding-top:14px}
@media(max-width:600px){text{font-size:15px}text.label,text.value{font-size:17px}}
@media print{body{background:#fff}figure,.card,.tile{break-inside:avoid}}
"""
