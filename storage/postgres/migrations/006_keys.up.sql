-- A unit may be named by a key instead of an index. In all tables, its column daemon has the daemon's ID and the key, with a
-- space in between, and its index is 0. The row of a key is retired once the key was removed.
--
-- The highest generation of a unit whose row was swept. A key that comes back gets a higher one.
alter table {{counter}} add column generation_floor bigint not null default 0;

-- Only the statement that changes keys retires them. A leader of an earlier version retires a unit of which it knows no spec.
create function {{schema}}.{{name "keep_key"}}() returns trigger
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $keep$
begin
	if current_setting('emitd.keys', true) is distinct from 'on' then
		new.retired := old.retired;
	end if;
	return new;
end
$keep$;
create trigger keep_key before update on {{unit}}
	for each row when (old.retired <> new.retired and position(' ' in old.daemon) > 0)
	execute function {{schema}}.{{name "keep_key"}}();
