-- Raises the fences that no transaction holds. The others are left for a stamp that waits.
with input as materialized (
	select x.daemon, x.index, max(x.generation) as generation
	from json_to_recordset($1) as x (daemon text, index int, generation bigint)
	group by 1, 2
),
free as materialized (
	select f.daemon, f.index, i.generation
	from {{fence}} f join input i on f.daemon = i.daemon and f.index = i.index
	where f.generation < i.generation
	order by f.daemon, f.index
	for update of f skip locked
)
update {{fence}} f set generation = free.generation, stamped_at = clock_timestamp()
from free where f.daemon = free.daemon and f.index = free.index and f.generation < free.generation
