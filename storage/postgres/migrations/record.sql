-- The migrator's own table, made before the first migration.
create table if not exists {{migration}} (
	version    integer primary key,
	name       text not null,
	-- The oldest program that still works with this version: a deployment migrates first.
	compatible integer not null,
	applied_at timestamptz not null default clock_timestamp()
)
