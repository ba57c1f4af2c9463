package host

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/view"
)

// TestConsole checks that a browser gets the console without a token, and nothing else.
func TestConsole(t *testing.T) {
	t.Parallel()
	file := write(t, "tokens", token+"\n")
	o := rig(t, func(c *config.Config, _ *Options) { c.API.TokensFile = file })
	browser := []string{"Accept", "text/html,application/xhtml+xml,*/*;q=0.8"}
	err := started(t, o, func(ctx context.Context, r *Running) {
		for _, c := range []struct {
			path   string
			header []string
			status int
			has    string
		}{
			{"/", browser, 200, "<!doctype html>"},
			{"/console/console.js", nil, 200, "api/v1/"},
			{"/", nil, 401, "token"},
			{"/", []string{"Authorization", "Bearer " + token}, 200, "/api/v1/openapi.json"},
			{"/metrics", browser, 401, "token"},
			{"/api/v1/overview", browser, 401, "token"},
			{"/console/none.js", browser, 404, "not found"},
		} {
			got := send(ctx, t, "GET", r.URL+c.path, "", c.header...)
			if got.status != c.status || !strings.Contains(got.body, c.has) {
				t.Errorf("%s with %q: %d %.100q, want %d and %q", c.path, c.header, got.status, got.body, c.status, c.has)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAdminWithoutAnObjectStore checks that a process without queues of its own has nothing to warn of.
func TestAdminWithoutAnObjectStore(t *testing.T) {
	t.Parallel()
	o := rig(t, func(*config.Config, *Options) {})
	err := started(t, o, func(ctx context.Context, r *Running) {
		got := send(ctx, t, "GET", r.URL+"/api/v1/overview", "")
		var overview view.Overview
		if err := json.Unmarshal([]byte(got.body), &overview); err != nil || overview.Queues == nil || overview.Queues.Problem != "" {
			t.Errorf("%d %s: %v", got.status, got.body, err)
		}
	})
	if err != nil {
		t.Error(err)
	}
}
