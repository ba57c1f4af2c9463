-- The record says which older programs work with a version.
alter table {{outbox_migration}} add column if not exists compatible integer;

-- Wakes relays. A publisher that does so itself calls it after its commit, in a transaction of its own. Commits that
-- notify wait for each other, so the transaction that publishes must not be one of them.
--
-- Only one of several calls at the same time notifies. The others need not: what they announce is committed already, and
-- the notification is sent when the transaction that has the lock commits, which is later.
create function {{function "outbox_wake"}}() returns void
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $wake$
begin
	if pg_current_xact_id_if_assigned() is not null then
		raise exception 'outbox_wake is called in a transaction that has written'
			using hint = 'Commit first. Then call it in a transaction of its own.';
	end if;
	if pg_try_advisory_xact_lock({{scope}}, -2) then
		perform pg_notify({{channel}}, '');
	end if;
end
$wake$;
revoke all on function {{function "outbox_wake"}}() from public;
