insert into {{lock}} (name, owner, number, expires_at) values ($1, '', 0, '-infinity') on conflict do nothing
