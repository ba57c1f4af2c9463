select l.name, l.owner, l.number, l.renewals, l.ttl, l.expires_at, clock_timestamp() from {{lock}} l
where l.owner <> '' and ($1 = '' or l.name > $1) order by l.name limit $2::bigint
