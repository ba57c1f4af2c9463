// Package pgstories holds the program's stories on Postgres. It is a separate package because they need a
// server: see the module's internal/pgtest for how to get one.
package pgstories
