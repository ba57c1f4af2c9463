package config

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/sinks"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
)

// isSQL reports whether a URL names a database that can hold an outbox.
func isSQL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "sqlite" || u.Scheme == "postgres" || u.Scheme == "postgresql")
}

// minOutboxConnections is the minimum of outbox.max_connections, because a relay reads and stores at the
// same time.
const minOutboxConnections = 2

func (v *validator) outbox() {
	if v.Outbox.Retention < 0 {
		v.complain(fault.BadValue, "outbox.retention", "is %v, want 0s or more", v.Outbox.Retention)
	}
	if v.Outbox.DeadRetention < 0 {
		v.complain(fault.BadValue, "outbox.dead_retention", "is %v, want 0s (for ever) or more", v.Outbox.DeadRetention)
	}
	if n := v.Outbox.MaxConnections; n < minOutboxConnections || n > maxConnections {
		v.complain(fault.BadValue, "outbox.max_connections", "is %d, want %d to %d", n, minOutboxConnections, maxConnections)
	}
	if v.Outbox.MaxRetained < 0 {
		v.complain(fault.BadValue, "outbox.max_retained", "is %d bytes, want 0 (no limit) or more", v.Outbox.MaxRetained)
	}
	v.outboxURL()
	seen := map[string]int{}
	for i, s := range v.Outbox.Subscriptions {
		at := item(subscriptionPath, i)
		if first, twice := seen[s.Name]; twice && s.Name != "" {
			v.complain(fault.BadOutbox, v.near(at, "name"), "is %q a second time; %s has it already", s.Name, item(subscriptionPath, first))
			continue
		}
		seen[s.Name] = i
		v.subscription(at, s)
	}
}

// outboxURL validates the database of the outbox, as far as it is known.
func (v *validator) outboxURL() {
	switch text := v.Outbox.URL; {
	case text != "" && !isSQL(text):
		v.complain(fault.OutboxURL, "outbox.url", "has %s: messages are published in transactions, so the outbox needs a SQL database", schemeOf(text))
	case text != "":
		if why := storeURL(text); why != "" {
			v.complain(fault.OutboxURL, "outbox.url", "%s", why)
		}
	case len(v.Outbox.Subscriptions) > 0 && v.Store.URL != "" && !isSQL(v.Store.URL) && !v.broken:
		v.complain(fault.OutboxURL, subscriptionPath, "are set, but outbox.url is not, and store.url is not a SQL database")
	}
}

func (v *validator) subscription(at string, s Subscription) {
	bad := func(key, format string, args ...any) {
		v.complain(fault.BadOutbox, v.near(at, key), format, args...)
	}
	if s.Name == "" {
		bad("name", "has no name")
	} else if id := outbox.ID(s.Name); id.Validate() != nil || id.Group() != "" {
		bad("name", "is %.80q, want lower-case letters, digits and ._:/-", s.Name)
	}
	for _, t := range s.Topics {
		if t == "" || strings.Contains(strings.TrimSuffix(t, "*"), "*") {
			bad("topics", "has %.80q, want a topic, or a prefix followed by *", t)
		}
	}
	if s.Instances < 0 || s.Instances > outbox.Shards || s.Instances == 0 && v.isSet(at, "instances") {
		bad("instances", "is %d, want 1 to %d (the number of shards)", s.Instances, outbox.Shards)
	}
	for _, n := range []struct {
		key   string
		value int
	}{{"parallel", s.Parallel}, {"page_rows", s.PageRows}} {
		if n.value < 0 || n.value == 0 && v.isSet(at, n.key) {
			bad(n.key, "is %d, want 1 or more", n.value)
		}
	}
	v.positive(at, "deliver_timeout", s.DeliverTimeout)
	v.positive(at, "page_timeout", s.PageTimeout)
	if most := cmp.Or(s.DeliverTimeout, Duration(30*time.Second)); most > 0 && s.PageTimeout > most {
		bad("page_timeout", "is %v, more than deliver_timeout, which is %v", s.PageTimeout, most)
	}
	v.retry(at, s.Retry)
	v.sink(at, s)
}

func (v *validator) retry(at string, r retryKeys) {
	if r.MaxAttempts < -1 || r.MaxAttempts == 0 && v.isSet(at, "retry.max_attempts") {
		v.complain(fault.BadOutbox, v.near(at, "retry.max_attempts"), "is %d, want 1 or more, or -1 for no limit", r.MaxAttempts)
	}
	v.positive(at, "retry.backoff", r.Backoff)
	v.positive(at, "retry.max_backoff", r.MaxBackoff)
	v.positive(at, "retry.missing_for", r.MissingFor)
	if first, most := r.withDefaults(); first > 0 && most > 0 && first > most {
		key := "retry.backoff"
		if r.Backoff == 0 {
			key = "retry.max_backoff"
		}
		v.complain(fault.BadOutbox, v.near(at, key), "is contradictory: retry.backoff is %v, more than retry.max_backoff, which is %v", first, most)
	}
}

// positive validates a duration that may be left out.
func (v *validator) positive(at, key string, d Duration) {
	if d < 0 || d == 0 && v.isSet(at, key) {
		v.complain(fault.BadOutbox, v.near(at, key), "is %v, want more than 0s", d)
	}
}

// withDefaults returns the effective pauses. The defaults are those of outbox.Retry.
func (r retryKeys) withDefaults() (first, most Duration) {
	return cmp.Or(r.Backoff, Duration(time.Second)), cmp.Or(r.MaxBackoff, Duration(5*time.Minute))
}

func (v *validator) sink(at string, s Subscription) {
	if s.Sink != nil || v.broken {
		return
	}
	f := v.complain(fault.BadOutbox, at, "has no sink for %.80q", s.Name)
	f.Do = "add sink: {kind: …} with one of " + strings.Join(sinks.Kinds(), ", ")
}
