-- Reads the units that may have changed since an earlier reading in this process. The revision tells whether any has. Each
-- row tells which transaction wrote it. A transaction before the oldest one that ran during the earlier reading had
-- ended then, so that reading saw what it wrote. In doubt, the statement reads every unit.
select u from {{unit}} u
where (select c.revision from {{counter}} c) <> $1::uuid
	and age(u.xmin) <= coalesce((select age($2::text::xid8::xid) where {{comparable "$2" "$3"}}), 2147483647)
order by u.daemon, u.index
