// Package history reads the cluster's events, and tells whether the store still has the history that was read.
//
// A restored backup, or a failover that lost the newest events, replaces a part of the history by another one. Soon that has
// events with the numbers of those that were lost, so the numbers alone show nothing. A reader reads the newest event that
// it knows again with each page, and compares it.
package history

import (
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// Replaced reports whether a page comes from another history than newest, the newest event that the reader knows. The page
// was read from the event before newest on. If newest was deleted, nothing is known and Replaced is false.
func Replaced(p *storage.EventPage, newest *daemon.Event) bool {
	if p.Head < newest.Seq {
		return true
	}
	if len(p.Events) == 0 || p.Events[0].Seq != newest.Seq {
		return false
	}
	is := &p.Events[0]
	return newest.Kind != is.Kind || !newest.At.Equal(is.At) || newest.Unit != is.Unit || newest.Incarnation != is.Incarnation ||
		newest.Generation != is.Generation
}
