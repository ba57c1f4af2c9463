-- Reads the next page of the units that have changed since an earlier reading, in order, as the statement units does. If
-- there is none that compares, the page is of all units. A hundred thousand in one message take longer than a call may.
select u from {{unit}} u
where (u.daemon, u.index) > ($1, $2::integer)
	and age(u.xmin) <= coalesce((select age($4::text::xid8::xid) where {{comparable "$4" "$5"}}), 2147483647)
	and u.xmin::text::bigint not in (select unnest($6::text::bigint[]) where {{comparable "$4" "$5"}})
order by u.daemon, u.index limit $3
