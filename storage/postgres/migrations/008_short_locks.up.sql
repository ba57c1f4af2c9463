-- A statement that changes no unit, or not the term, leaves the revision alone and does not wait for the row counter. The
-- triggers of version 4 fired for it too: each candidate that was refused renewed the revision, so that every node read
-- its units anew.
drop trigger revise on {{term}}; -- before the table unit: transactions lock the term first
drop trigger revise on {{unit}};

create or replace function {{schema}}.{{name "revise"}}() returns trigger
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $revise$
begin
	if tg_op <> 'TRUNCATE' then
		if not exists (select from changed) then
			return null;
		end if;
	end if;
	update {{counter}} set revision = gen_random_uuid();
	return null;
end
$revise$;
{{range $table := revised}}
create trigger revise_insert after insert on {{$table}} referencing new table as changed
	for each statement execute function {{schema}}.{{name "revise"}}();
create trigger revise_update after update on {{$table}} referencing new table as changed
	for each statement execute function {{schema}}.{{name "revise"}}();
create trigger revise_delete after delete on {{$table}} referencing old table as changed
	for each statement execute function {{schema}}.{{name "revise"}}();
create trigger revise_truncate after truncate on {{$table}}
	for each statement execute function {{schema}}.{{name "revise"}}();
{{end}}
{{include "heartbeat_8"}}
{{include "register_8"}}
