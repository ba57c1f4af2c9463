-- The revision names the present term and units. It is a new random value with each transaction that changes them, so it
-- never stands for anything else, even after the newest rows were lost and numbers repeat. Triggers write it, so that no
-- statement can forget it, and neither can a program of an earlier version.
alter table {{counter}} add column revision uuid not null default gen_random_uuid();

create function {{schema}}.{{name "revise"}}() returns trigger
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $revise$
begin
	update {{counter}} set revision = gen_random_uuid();
	return null;
end
$revise$;
create trigger revise after insert or update or delete or truncate on {{unit}}
	for each statement execute function {{schema}}.{{name "revise"}}();
create trigger revise after insert or update or delete or truncate on {{term}}
	for each statement execute function {{schema}}.{{name "revise"}}();

{{include "heartbeat_4"}}
