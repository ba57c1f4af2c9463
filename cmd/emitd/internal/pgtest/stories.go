// Package pgtest holds the stories of the program on Postgres. It has a package of its own because
// they need a server: see the module's internal/pgtest for how to get one.
package pgtest
