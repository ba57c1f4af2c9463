-- Tells what the statement units has read: whether it left out the units that have not changed, and how many there are.
-- Of rows that are gone, nothing else tells. The last three columns are for the next reading. If the revision is the same,
-- the units are not counted.
select {{comparable "$2" "$3"}}, w.n, {{oldest}}, coalesce(w.seen, '{}'), {{history}}
from (values (1)) as v left join (
	select count(*) as n, {{seen "u"}} as seen from {{unit}} u having (select c.revision from {{counter}} c) <> $1::uuid
) as w on true
