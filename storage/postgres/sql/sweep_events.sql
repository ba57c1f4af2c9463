-- Always deletes from the beginning of the history, up to the first event that is young enough and
-- within the number to retain. Readers see no gap, even if the clock was set back. Age alone never deletes
-- the newest $7.
with span as materialized (
	select oldest, head, oldest + $6::bigint as bound,
		oldest + greatest(head - oldest + 1 - $5::bigint, 0) as beyond
	from {{counter}} where {{fenced "$1" "$2::bigint" "$3::bigint"}}
),
first as materialized (
	select span.oldest, least(head + 1, bound, greatest(beyond, least(head + 1 - $7::bigint, coalesce(
		(select e.seq from {{event}} e
		where e.seq >= span.beyond and e.seq < span.bound and e.at >= clock_timestamp() - $4::bigint * interval '1 microsecond'
		order by e.seq limit 1), bound)))) as seq
	from span
),
gone as (delete from {{event}} e using first where e.seq >= first.oldest and e.seq < first.seq returning 1),
moved as (update {{counter}} c set oldest = first.seq from first where first.seq > c.oldest)
select count(*) from gone
