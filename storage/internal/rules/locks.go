package rules

import (
	"cmp"
	"slices"
	"time"

	"github.com/emitd/emitd/storage"
)

// HeldLocks returns the locks that are held, for [storage.Locker].
func HeldLocks(locks map[string]storage.Lock, after string, limit int, now time.Time) []storage.Lock {
	var out []storage.Lock
	for _, l := range locks {
		if !l.Free() && (after == "" || l.Name > after) {
			l.Now = now
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b storage.Lock) int { return cmp.Compare(a.Name, b.Name) })
	return out[:min(len(out), limit)]
}
