insert into {{lock}} (name, owner, number, renewals, ttl, expires_at) values ($1, '', 0, 0, 0, '-infinity') on conflict do nothing
