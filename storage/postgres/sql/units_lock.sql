select from {{unit}}
where (daemon, index) in (select x.daemon, x.index from json_to_recordset($1) as x (daemon text, index int))
order by daemon, index for update
