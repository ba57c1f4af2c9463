package rules

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// The reasons in the rows of keys.
const (
	KeyAdded   = "its key was added"
	KeyRemoved = "its key was removed"
)

// ChangeKeys adds and removes keys.
func ChangeKeys(r Rows, c storage.KeyChange, now time.Time) (storage.KeyCounts, error) {
	if f := c.Fence; f != (daemon.Fence{}) {
		if held := r.Fence(f.Unit); held != f.Generation || f.Generation <= 0 {
			return storage.KeyCounts{}, &daemon.StaleError{Fence: f, HeldGeneration: held}
		}
	}
	var counts storage.KeyCounts
	var added, removed []string
	for _, key := range c.Add {
		rec := daemon.Record{Unit: daemon.Unit{Daemon: c.Daemon, Key: key}, State: daemon.Unassigned}
		if old := r.Unit(rec.Unit); old != nil {
			if rec = *old; !rec.Retired {
				continue
			}
		}
		putKey(r, rec, false, KeyAdded, now)
		added = append(added, key)
	}
	for _, key := range c.Remove {
		if old := r.Unit(daemon.Unit{Daemon: c.Daemon, Key: key}); old != nil && !old.Retired {
			putKey(r, *old, true, KeyRemoved, now)
			removed = append(removed, key)
		}
	}
	counts.Added, counts.Removed = len(added), len(removed)
	if counts != (storage.KeyCounts{}) {
		r.Emit(daemon.Event{Kind: daemon.UnitsChanged, Daemon: c.Daemon, Reason: c.Reason, Detail: KeysDetail(c.Actor, added, removed)}, now)
	}
	return counts, nil
}

// putKey writes the row of a key. A held unit keeps the time and the reason of its state.
func putKey(r Rows, rec daemon.Record, retired bool, reason string, now time.Time) {
	rec.Retired = retired
	if rec.State.IsFree() {
		rec.Since, rec.Reason = now, reason
	}
	r.Put(rec)
}

// maxNamedKeys is how many keys of each kind an event names.
const maxNamedKeys = 8

// KeysDetail is the detail of an event about keys.
func KeysDetail(actor string, added, removed []string) json.RawMessage {
	text, err := json.Marshal(struct {
		Actor       string   `json:"actor,omitempty"`
		Added       int      `json:"added"`
		Removed     int      `json:"removed"`
		AddedKeys   []string `json:"added_keys,omitempty"`
		RemovedKeys []string `json:"removed_keys,omitempty"`
	}{actor, len(added), len(removed), added[:min(len(added), maxNamedKeys)], removed[:min(len(removed), maxNamedKeys)]})
	if err != nil {
		panic("strings always marshal: " + err.Error())
	}
	return text
}

// IsOldKey reports whether a sweep of keys that were removed before the given time deletes a row.
func IsOldKey(r *daemon.Record, before time.Time) bool {
	return r.Unit.Key != "" && r.Retired && r.State.IsFree() && r.Since.Before(before)
}

// Tables keep units by two columns, a text and a number. The text of a keyed unit is its daemon's ID and its key, with a
// space in between, which no ID contains and which sorts before everything that an ID may contain: rows in the order of
// the columns are in the order of daemon.Unit.Compare. So no table, statement or function distinguishes keyed units.

// Columns returns the two columns of a unit.
func Columns(u daemon.Unit) (name string, index int) {
	if u.Key == "" {
		return string(u.Daemon), u.Index
	}
	return string(u.Daemon) + " " + u.Key, 0
}

// FromColumns returns the unit that the two columns name.
func FromColumns(name string, index int) daemon.Unit {
	if id, key, keyed := strings.Cut(name, " "); keyed {
		return daemon.Unit{Daemon: daemon.ID(id), Key: key}
	}
	return daemon.Unit{Daemon: daemon.ID(name), Index: index}
}
