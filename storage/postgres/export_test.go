package postgres

import "strings"

// FakeClock makes a store ask an SQL expression instead of the server's clock.
func (s *Store) FakeClock(expression string) {
	for name, text := range s.sql {
		s.sql[name] = cut(strings.ReplaceAll(text.String(), "clock_timestamp()", expression))
	}
}
