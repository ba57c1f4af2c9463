-- Marks the text as used, so that no sweep deletes it during a registration.
insert into {{advert}} (hash, body, used_at) values ($1, $2, clock_timestamp())
on conflict (hash) do update set used_at = clock_timestamp()
