package admin

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage"
)

// TestKeys: keys of a daemon are added and removed, their units are shown, and what cannot be changed is refused.
func TestKeys(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		a := api(t, store)
		change := func(body string) (code int, answer keysAnswer, p fault.Problem) {
			t.Helper()
			var both struct {
				keysAnswer
				fault.Problem
			}
			w := do(t, a, request(t, "POST", root+"/keys", body), &both)
			return w.Code, both.keysAnswer, both.Problem
		}
		code, n, p := change(`{"daemon": "acme:tenants", "add": ["globex", "a b/c"], "actor": "alice", "reason": "they signed", "undeclared": true}`)
		if code != 200 || n.Added != 2 {
			t.Fatalf("%d %+v %+v", code, n, p)
		}
		var units unitPage
		if do(t, a, request(t, "GET", root+"/units?daemon=acme:tenants", ""), &units); len(units.Units) != 2 || units.Units[0].Unit.Key != "a b/c" {
			t.Errorf("%+v", units.Units)
		}
		var one unitAnswer
		if w := do(t, a, request(t, "GET", root+"/units/acme:tenants~a%20b%2Fc", ""), &one); w.Code != 200 || one.Unit.Unit.Key != "a b/c" || one.Address != "" {
			t.Errorf("%d %+v", w.Code, one)
		}
		if code, n, _ := change(`{"daemon": "acme:tenants", "add": ["globex"], "remove": ["a b/c", "never"]}`); code != 200 || n != (keysAnswer{Removed: 1}) {
			t.Errorf("%d %+v", code, n)
		}
		var events eventPage
		do(t, a, request(t, "GET", root+"/events?kind=units.changed", ""), &events)
		if len(events.Events) != 2 || !strings.Contains(string(events.Events[1].Detail), "alice") && !strings.Contains(string(events.Events[0].Detail), "alice") {
			t.Errorf("%+v", events.Events)
		}
		for body, want := range map[string]string{
			`{"daemon": "acme:unknown", "add": ["x"]}`:                                       "E2201",
			`{"daemon": "acme:reports", "add": ["x"]}`:                                       "E2113",
			`{"daemon": "acme:tenants", "add": ["x", ""]}`:                                   "E2113",
			`{"daemon": "acme:tenants", "add": ["` + strings.Repeat("x", 300) + `"]}`:        "E2113",
			`{"daemon": "acme:tenants", "add": ["x"], "remove": ["x"]}`:                      "E2113",
			`{"daemon": "acme:tenants", "remove": ["new\nline"]}`:                            "E2113",
			`{"daemon": "Acme", "add": ["x"], "undeclared": true}`:                           "E2113",
			`{"daemon": "acme:tenants", "add": ["x"], "because": "of an unknown field"}`:     "",
			`{"daemon": "acme:tenants", "add": ["x"], "undeclared": "a text for a boolean"}`: "",
		} {
			code, _, p := change(body)
			if code < 400 || code >= 500 || want != "" && p.Code != fault.Code(want) || len(p.Detail) > 1000 {
				t.Errorf("%.100s: %d %+v, want %s", body, code, p, want)
			}
		}
		if do(t, a, request(t, "GET", root+"/units?daemon=acme:tenants", ""), &units); len(units.Units) != 1 {
			t.Errorf("%+v", units.Units)
		}
	})
}
