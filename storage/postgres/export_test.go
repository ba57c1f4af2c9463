package postgres

import "strings"

// fake replaces the server's clock and identity by SQL expressions.
func fake(clock, id string) *strings.Replacer {
	return strings.NewReplacer("clock_timestamp()", clock, "(pg_control_system()).system_identifier", id, "pg_postmaster_start_time()", id)
}

// FakeServer makes a store ask SQL expressions instead of the server's clock and identity. The
// procedure of heartbeats is the schema's: see [FakeProcedure].
func (s *Store) FakeServer(clock, id string) {
	for name, text := range s.sql {
		s.sql[name] = cut(fake(clock, id).Replace(text.String()))
	}
}

// FakeProcedure is the definition of a procedure of heartbeats that asks the expressions.
func FakeProcedure(cfg Config, clock, id string) string {
	text := cfg.names().include("001_heartbeat")
	return strings.Replace(fake(clock, id).Replace(text), "out server timestamptz", "out server text", 1)
}

// Slow makes heartbeats go without the procedure.
func (s *Store) Slow() { s.quick.Store(false) }

// Quick reports whether heartbeats use the procedure.
func (s *Store) Quick() bool { return s.quick.Load() }
