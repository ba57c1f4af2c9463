select x.ord, f.generation
from json_to_recordset($1) as x (ord int, daemon text, index int)
join {{fence}} f on f.daemon = x.daemon and f.index = x.index
