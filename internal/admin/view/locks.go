package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/storage"
)

// Lock is a named lock that is held.
type Lock struct {
	Name string `json:"name"`
	// Holder is the process that holds it: by default its host and process ID. Owner is also unique for each acquisition.
	Holder string `json:"holder"`
	Owner  string `json:"owner"`
	// Number is the fencing token. It is higher than that of every earlier holder.
	Number   int64 `json:"number"`
	Renewals int64 `json:"renewals"`
	TTLMS    int64 `json:"ttl_ms"` // how long others leave the lock to a holder that does not renew it
	// RenewedAt is when the lock was taken or, after that, renewed.
	RenewedAt Time `json:"renewed_at"`
	// Overdue says that it was not renewed for longer than its TTL, by the store's clock. Its holder may be gone, and
	// whoever wants the lock has it a TTL later at the latest. Nobody may want it.
	Overdue bool `json:"overdue"`
}

// LockOf returns the view of a lock.
func LockOf(l storage.Lock) Lock {
	holder := ""
	if i := strings.LastIndexByte(l.Owner, '/'); i >= 0 { // others than package lock may name owners as they like
		holder = l.Owner[:i]
	}
	return Lock{
		Name: l.Name, Holder: holder, Owner: l.Owner, Number: l.Number, Renewals: l.Renewals, TTLMS: l.TTL.Milliseconds(),
		RenewedAt: Time{l.ExpiresAt.Add(-l.TTL)}, Overdue: l.ExpiresAt.Before(l.Now),
	}
}

// LockTable returns a table of locks. now is the store's clock.
func LockTable(locks []Lock, now time.Time, wide bool) *Table {
	t := &Table{Head: []string{"NAME", "HOLDER", "NUMBER", "RENEWED", "TTL", "STATE"}}
	if wide {
		t.Head = append(t.Head, "RENEWALS", "OWNER")
	}
	for _, l := range locks {
		state := "held"
		if l.Overdue {
			state = "overdue"
		}
		row := []string{l.Name, l.Holder, fmt.Sprint(l.Number), Short(now.Sub(l.RenewedAt.Time)) + " ago", Short(time.Duration(l.TTLMS) * time.Millisecond), state}
		if wide {
			row = append(row, fmt.Sprint(l.Renewals), l.Owner)
		}
		t.Add(row...)
	}
	return t
}
