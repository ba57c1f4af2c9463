-- What the runs of a unit leave for later runs. Only the unit's present run writes it, behind its fence.
create table {{unit_state}} (
	daemon     text collate "C" not null,
	index      integer not null,
	generation bigint not null, -- of the run that wrote it
	revision   bigint not null,
	saved_at   timestamptz not null,
	data       json not null,
	primary key (daemon, index)
) with (fillfactor = 50);
