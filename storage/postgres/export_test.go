package postgres

import "strings"

// FakeServer makes a store ask SQL expressions instead of the server's clock and identity.
func (s *Store) FakeServer(clock, id string) {
	fake := strings.NewReplacer("clock_timestamp()", clock, "(pg_control_system()).system_identifier", id)
	for name, text := range s.sql {
		s.sql[name] = cut(fake.Replace(text.String()))
	}
}
