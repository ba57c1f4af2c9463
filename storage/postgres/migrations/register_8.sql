-- Serves a registration that does nothing else: it does not campaign or renew, and brings no exit evidence and no
-- returned run. The function does what the statements register_lock, advertise, nodes_lock, name_cluster, register, single,
-- held, roll and waiting of package storage/postgres do, in this order, and takes the same locks. What is said of
-- heartbeat_8 holds for this function, too: the isolation, the snapshots, the name and the answer as one value.
--
-- The statement register writes all of its cases into one plan, and planning them takes the server longer than all
-- else about a registration. The function plans what its case needs: a newcomer needs an insert, an event and the reply.
--
-- The answer is a row: whether the node is a member, the process that has its ID (four columns and its host), the
-- cluster's name if it is another one, and then what heartbeat_8 answers after its first column; the sequence number is
-- null if there was no row. All of that is null if the node was refused.
create or replace function {{schema}}.{{name "register_8"}}(
	patience text, who text, own_id text, own_name text, ttl_micros bigint, beat bigint, heard_by bigint,
	term_seen bigint, generation_seen bigint, leads_never boolean, hash_of_advert text, body_of_advert text,
	own_traits jsonb, cluster_name text, roll_after bigint, roll_to bigint, wakes boolean
) returns record language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $register$
#variable_conflict use_variable
declare
	began timestamptz := clock_timestamp();
	present boolean;
	past {{node}};
	taken {{node}};
	other text := '';
	stamp timestamptz;
	place bigint;
	chief text;
	ignored text;
	size int;
	answer record;
begin
	if current_setting('transaction_isolation') <> 'read committed' then
		raise exception using errcode = '25000', message = format(
			'transactions of this role begin as %s: set its default_transaction_isolation to %L',
			current_setting('transaction_isolation'), 'read committed');
	end if;
	ignored := set_config('lock_timeout', patience, true);
	perform pg_advisory_xact_lock(hashtextextended({{literal "register"}} || own_id, 0));
	update {{advert}} a set used_at = clock_timestamp()
		where a.hash = hash_of_advert and a.used_at < clock_timestamp() - interval '30 minutes';
	if not found then
		insert into {{advert}} (hash, body, used_at) values (hash_of_advert, body_of_advert, clock_timestamp())
			on conflict (hash) do nothing;
	end if;
	select n.* into past from {{node}} n where n.incarnation = who for update;
	present := found;
	if cluster_name <> '' then
		update {{counter}} c set cluster = cluster_name where c.cluster = '';
		select c.cluster into strict other from {{counter}} c;
		other := case when other = cluster_name then '' else other end;
	end if;
	stamp := clock_timestamp();
	if present and (past.departed or past.seq >= beat) then
		return row(false, '', '', '', null::timestamptz, null::json, '');
	end if;
	if other <> '' then
		return row(false, '', '', '', null::timestamptz, null::json, other);
	end if;
	if not present or past.state = 'removed' then
		select n.* into taken from {{node}} n,
			coalesce(nullif((n.traits #>> '{timing,node_registration_ttl}')::bigint, 0) / 1000, ttl_micros) as life
			where n.id = own_id and n.incarnation <> who and n.state <> 'removed'
				-- A stamp further ahead was made before the clock was set back.
				and stamp - n.last_heartbeat_at < life * interval '1 microsecond'
				and n.last_heartbeat_at - stamp < life * interval '1 microsecond'
			order by n.incarnation limit 1;
		if found then
			return row(false, taken.id, taken.name, taken.incarnation, taken.last_heartbeat_at, taken.traits->'host', '');
		end if;
	end if;
	if not present then
		insert into {{node}} (incarnation, seq, heard, last_heartbeat_at, heard_at, highest_term, highest_generation,
			registered_at, never_lead, witnessed, departed, state, judged, id, name, advert, end_reason, traits)
		values (who, beat, heard_by, stamp, stamp, term_seen, generation_seen, stamp, leads_never, false, false, 'live', '',
			own_id, own_name, hash_of_advert, '', own_traits);
	elsif past.state = 'removed' then
		update {{node}} n set
			seq = beat, last_heartbeat_at = stamp, heard_at = stamp, heard = greatest(n.heard, heard_by),
			highest_term = greatest(n.highest_term, term_seen), highest_generation = greatest(n.highest_generation, generation_seen),
			never_lead = leads_never, advert = hash_of_advert, traits = own_traits, id = own_id, name = own_name,
			registered_at = stamp, witnessed = false, judged = '', ended_at = null, end_reason = '', state = 'live'
		where n.incarnation = who;
	else
		update {{node}} n set
			seq = beat, last_heartbeat_at = stamp,
			heard_at = case when heard_by > n.heard then stamp else n.heard_at end, heard = greatest(n.heard, heard_by),
			highest_term = greatest(n.highest_term, term_seen), highest_generation = greatest(n.highest_generation, generation_seen),
			never_lead = leads_never, advert = hash_of_advert, traits = own_traits, ended_at = null, end_reason = ''
		where n.incarnation = who;
	end if;
	if not present or past.state = 'removed' then
		-- Registrations wait here for each other. They wait no longer in all than the caller waits for the answer.
		ignored := set_config('lock_timeout', greatest(patience::bigint
			- (extract(epoch from clock_timestamp() - began) * 1000)::bigint, 1)::text, true);
		update {{counter}} c set head = c.head + 1, rolled = c.head + 1 returning c.head into strict place;
		insert into {{event}} (seq, at, kind, node, node_id, incarnation, daemon, index, term, term_ordinal, generation, reason, detail)
			values (place, stamp, 'node.registered', own_name, own_id, who, '', null, 0, 0, 0,
				case when present then 'returned' else '' end, null);
		if wakes then
			select t.incarnation into chief from {{term}} t where {{held "t"}};
			if found then
				perform pg_notify({{channel}}, json_build_object('Nodes', json_build_array(chief), 'Leader', true)::text);
			end if;
		end if;
	end if;
	select true as admitted, '' as id, '' as name, '' as incarnation, null::timestamptz as seen, null::json as host, '' as other,
			past.seq as former, false as apart, c, clock_timestamp(), {{started}}, pg_walfile_name(pg_current_wal_insert_lsn()),
			(select t from {{term}} t), (select l from {{lease}} l), array(select u from {{unit}} u where u.owner = who) as units,
			null::{{event}}[] as roll, null::{{command}}[] as waiting, c.rolled, c.waiting as open
		into strict answer -- without this row the store is broken: the call fails and writes nothing
		from {{counter}} c;
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
$register$;
