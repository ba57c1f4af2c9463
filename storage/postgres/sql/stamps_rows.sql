-- Inserts the rows that are missing, so that the next statement finds them.
insert into {{fence}} (daemon, index, generation, stamped_at)
select distinct x.daemon, x.index, 0, clock_timestamp() from json_to_recordset($1) as x (daemon text, index int)
where not exists (select from {{fence}} f where f.daemon = x.daemon and f.index = x.index)
order by 1, 2
on conflict do nothing
