-- The cluster's state. The tables that every heartbeat writes (node, lease) have no index on the
-- columns that heartbeats change, and free room on their pages. An update therefore stays on its
-- page (HOT) and needs neither an index entry nor a vacuum.

create table {{node}} (
	incarnation        text collate "C" primary key,
	-- The columns that a heartbeat changes stand together, so that the log holds only their bytes.
	seq                bigint not null,
	heard              bigint not null,
	last_heartbeat_at  timestamptz not null,
	heard_at           timestamptz not null,
	highest_term       bigint not null,
	highest_generation bigint not null,
	registered_at      timestamptz not null,
	ended_at           timestamptz,
	never_lead         boolean not null,
	witnessed          boolean not null,
	departed           boolean not null, -- it deregistered itself, so it is never revived
	state              text not null,
	judged             text not null,
	id                 text collate "C" not null,
	name               text not null,
	advert             text not null,
	end_reason         text not null,
	traits             jsonb not null
) with (fillfactor = 50);

-- What the replicas of one program advertise, stored once.
create table {{advert}} (
	hash    text collate "C" primary key,
	body    text not null,
	used_at timestamptz not null
);

-- The number is the key, so a statement that changes it waits for those that hold the row FOR KEY
-- SHARE: an election waits for a commit that is under way in the term it replaces.
create table {{term}} (
	number      bigint primary key,
	ordinal     bigint not null,
	node_id     text collate "C" not null,
	incarnation text collate "C" not null,
	name        text not null,
	elected_at  timestamptz,
	vacant      boolean not null,
	one         boolean not null default true unique check (one)
);
insert into {{term}} (number, ordinal, node_id, incarnation, name, vacant) values (0, 0, '', '', '', false);

-- Repeats the term and its holder, so that a renewal reads and locks only this row.
create table {{lease}} (
	term         bigint not null, -- 0: there is no lease to renew
	incarnation  text collate "C" not null,
	expires_at   timestamptz,
	renewals     bigint not null,
	last_pass_at timestamptz,
	pass_seq     bigint not null,
	one          boolean primary key default true check (one)
) with (fillfactor = 10);
insert into {{lease}} (term, incarnation, renewals, pass_seq) values (0, '', 0, 0);

create table {{unit}} (
	daemon              text collate "C" not null,
	index               integer not null,
	state               text not null,
	name                text not null, -- of the holder
	node_id             text collate "C" not null,
	incarnation         text collate "C" not null,
	generation          bigint not null,
	term                bigint not null,
	since               timestamptz not null,
	assigned_at         timestamptz,
	revoked_at          timestamptz,
	acknowledge_timeout bigint not null, -- nanoseconds, as drain_timeout
	drain_timeout       bigint not null,
	failures            integer not null,
	forced              boolean not null,
	retired             boolean not null,
	reason              text not null,
	error               text not null,
	embargoes           jsonb,
	failing_since       timestamptz,
	retry_at            timestamptz,
	-- Who holds the unit now. After the end of an assignment the columns above still name its last
	-- holder.
	owner               text collate "C" generated always as
		(case when state in ('unassigned', 'deleted') then null else incarnation end) stored,
	primary key (daemon, index)
) with (fillfactor = 70);
create index {{name "unit_owner"}} on {{unit}} (owner);

-- Which run may write. Neither the leader nor a heartbeat touches these rows.
create table {{fence}} (
	daemon     text collate "C" not null,
	index      integer not null,
	generation bigint not null,
	stamped_at timestamptz not null,
	primary key (daemon, index)
) with (fillfactor = 50);

create table {{event}} (
	seq          bigint primary key,
	at           timestamptz not null,
	kind         text not null,
	node         text not null,
	node_id      text not null,
	incarnation  text not null,
	daemon       text not null,
	index        integer, -- null: about no unit
	term         bigint not null,
	term_ordinal bigint not null,
	generation   bigint not null,
	reason       text not null,
	detail       json,
	roll         boolean generated always as (starts_with(kind, 'node.')) stored -- true: about members
);

-- Numbers that only grow. A transaction that makes an event updates this row last before it
-- commits. The row's lock makes the order of numbers the order of commits, without gaps.
create table {{counter}} (
	head       bigint not null, -- the number of the newest event, kept or deleted
	oldest     bigint not null, -- the first event that is kept, or head + 1
	rolled     bigint not null, -- at least the number of the newest event about members
	waiting    bigint not null, -- commands that nobody has fulfilled
	lock_floor bigint not null, -- the highest number of a lock whose row was swept
	-- The identity of the server on which the latest heartbeat found these rows, and since when it is another one than
	-- before. After a failover, the new server has the rows that it copied from the old one.
	store_id    text not null,
	other_since timestamptz,
	-- The cluster's name, set by the first node that registers.
	cluster     text not null default '',
	one        boolean primary key default true check (one)
) with (fillfactor = 10);
insert into {{counter}} (head, oldest, rolled, waiting, lock_floor, store_id) values (0, 1, 0, 0, 0, '');

create table {{command}} (
	id         text collate "C" primary key,
	number     bigint generated always as identity,
	kind       text not null,
	actor      text not null,
	reason     text not null,
	term       bigint not null,
	cooldown   bigint not null, -- nanoseconds
	args       json,
	created_at timestamptz not null,
	done_at    timestamptz,
	result     text not null
);

create table {{lock}} (
	name       text collate "C" primary key,
	owner      text not null, -- empty: free
	number     bigint not null,
	renewals   bigint not null,
	ttl        bigint not null, -- microseconds
	expires_at timestamptz not null
) with (fillfactor = 50);
