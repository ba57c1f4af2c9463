drop function if exists {{schema}}.{{name "register_8"}};
drop function if exists {{schema}}.{{name "heartbeat_8"}};
{{range $table := revised}}
drop trigger if exists revise_insert on {{$table}};
drop trigger if exists revise_update on {{$table}};
drop trigger if exists revise_delete on {{$table}};
drop trigger if exists revise_truncate on {{$table}};
{{end}}
create or replace function {{schema}}.{{name "revise"}}() returns trigger
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $revise$
begin
	update {{counter}} set revision = gen_random_uuid();
	return null;
end
$revise$;
create trigger revise after insert or update or delete or truncate on {{term}}
	for each statement execute function {{schema}}.{{name "revise"}}();
create trigger revise after insert or update or delete or truncate on {{unit}}
	for each statement execute function {{schema}}.{{name "revise"}}();
