// Package hostile runs a node under a limit of memory while clients do to it what they can, and honest clients
// beside them work as if nothing happened.
package hostile
