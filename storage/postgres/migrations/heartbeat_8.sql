-- Serves a simple heartbeat: one that does not register, does not campaign, and asks for no more than the rest of the
-- reply. The function does what the statements beat, renew, single, held, roll and waiting of package storage/postgres
-- do, in this order. Each statement of a volatile function has a snapshot of its own. A statement that reads therefore
-- sees everything that was committed while an earlier one waited for a lock. This is true only in READ COMMITTED, so
-- the function does nothing in any other isolation.
--
-- A session plans the function's statements once, and not for every heartbeat. The function skips statements that would
-- find nothing, as the row counter tells. Both together save more than half of a heartbeat's work. It is a function and
-- not a procedure, because the server's statistics remove the constants from a SELECT but not from a CALL.
--
-- The caller selects the function as one value, not FROM it: a row that is one value costs the server a third less
-- than a row of several columns. The value is null if the heartbeat was refused. Otherwise it is a row: whether the
-- lease was renewed, the sequence number that the row had before, whether the arrays are left out, the columns of the
-- statement single, and arrays of the rows of held, roll and waiting. If the term and all units are as in the reply that
-- the caller knows, the term and the units are null.
--
-- Arrays of more than some kilobytes are left out, and the caller reads them afterwards. The server sends the answer
-- before it commits. While the network or the client takes nothing, and what is sent no longer fits into the buffers, it
-- would wait with the locks of this transaction, and no timeout of statements or locks ends that wait. What counts is the
-- text that is sent. It is up to eight times as large as the value, because each of the three levels of quoting doubles
-- a backslash. Only where that matters does the function make the text to measure it.
create or replace function {{schema}}.{{name "heartbeat_8"}}(
	patience text, who text, beat bigint, heard_by bigint, term_seen bigint, generation_seen bigint,
	holds bigint, lost_through bigint, lease_micros bigint, pass bigint, roll_after bigint, roll_to bigint,
	known uuid
) returns record language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $heartbeat$
#variable_conflict use_variable
declare
	candidate boolean;
	former bigint;
	renewed boolean := false;
	ignored text;
	size int;
	answer record;
begin
	if current_setting('transaction_isolation') <> 'read committed' then
		raise exception using errcode = '25000', message = format(
			'transactions of this role begin as %s: set its default_transaction_isolation to %L',
			current_setting('transaction_isolation'), 'read committed');
	end if;
	-- The function waits for nothing but locks, and for each lock no longer than its caller waits for the answer.
	ignored := set_config('lock_timeout', patience, true);
	update {{node}} n set
		seq = beat,
		last_heartbeat_at = clock_timestamp(),
		heard_at = case when heard_by > n.heard then clock_timestamp() else n.heard_at end,
		heard = greatest(n.heard, heard_by),
		highest_term = greatest(n.highest_term, term_seen),
		highest_generation = greatest(n.highest_generation, generation_seen)
	where n.incarnation = who and n.seq < beat and n.state <> 'removed'
	-- The subquery sees the row as it was before.
	returning not n.never_lead, (select o.seq from {{node}} o where o.incarnation = who) into candidate, former;
	if not found then
		return null;
	end if;
	if holds > lost_through and candidate then
		update {{lease}} l set
			expires_at = clock_timestamp() + lease_micros * interval '1 microsecond',
			renewals = l.renewals + 1,
			last_pass_at = case when pass > l.pass_seq then clock_timestamp() else l.last_pass_at end,
			pass_seq = greatest(l.pass_seq, pass)
		where l.term = holds and l.incarnation = who;
		renewed := found;
	end if;
	select renewed, former, false as apart, c, clock_timestamp(), {{started}}, pg_walfile_name(pg_current_wal_insert_lsn()),
			null::{{term}} as term, (select l from {{lease}} l), null::{{unit}}[] as units,
			null::{{event}}[] as roll, null::{{command}}[] as waiting, c.rolled, c.waiting as open, c.revision
		into strict answer -- without this row the store is broken: the call fails and writes nothing
		from {{counter}} c;
	if answer.revision <> known then
		-- Everything anew, so that all of it is of one moment. Subqueries instead of a join: the planner assumes that
		-- tables which were never analyzed are large. A join of three of them would look like so much work that the
		-- server compiles the statement (jit).
		select renewed, former, false as apart, c, clock_timestamp(), {{started}}, pg_walfile_name(pg_current_wal_insert_lsn()),
				(select t from {{term}} t), (select l from {{lease}} l), array(select u from {{unit}} u where u.owner = who) as units,
				null::{{event}}[] as roll, null::{{command}}[] as waiting, c.rolled, c.waiting as open, c.revision
			into strict answer
			from {{counter}} c;
	end if;
	if roll_after >= 0 and roll_after < answer.rolled then
		answer.roll := array(select e from {{event}} e where e.seq > roll_after and e.seq <= roll_to and e.roll);
	end if;
	if answer.open > 0 then
		answer.waiting := array(select k from {{command}} k where k.done_at is null);
	end if;
	size := coalesce(pg_column_size(answer.units), 0) + coalesce(pg_column_size(answer.roll), 0)
		+ coalesce(pg_column_size(answer.waiting), 0);
	if size > {{largest}} or size > {{largest}} / 8 and octet_length(answer::text) > {{largest}} then
		answer.units := null;
		answer.roll := null;
		answer.waiting := null;
		answer.apart := true;
	end if;
	return answer;
end
$heartbeat$;
