-- Reads the units that have changed since an earlier reading in this process. The revision tells whether any has. Each
-- row tells which transaction wrote it. A transaction before the oldest one that ran during the earlier reading had
-- ended then, so that reading saw what it wrote, and so it did with the later ones that it has listed. If the readings do not
-- compare, the statement reads nothing. If more than a page has changed, it reads one row too many, and the process reads the
-- changes in pages.
select u from {{unit}} u
where (select c.revision from {{counter}} c) <> $1::uuid
	and age(u.xmin) <= (select age($2::text::xid8::xid) where {{comparable "$2" "$3"}})
	and u.xmin::text::bigint not in (select unnest($4::text::bigint[]))
order by u.daemon, u.index limit $5
