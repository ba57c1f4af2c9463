-- Tells what the statement units has read: whether it left out the units that have not changed, and how many there are.
-- Of rows that are gone, nothing else tells. The last two columns are for the next reading.
select {{comparable "$2" "$3"}},
	case when (select c.revision from {{counter}} c) <> $1::uuid then (select count(*) from {{unit}}) end,
	{{oldest}}, {{history}}
