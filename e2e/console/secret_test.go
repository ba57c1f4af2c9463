package console

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/emitd/emitd/e2e/drill"
)

// TestSecretsAreNowhere plants secrets where people have them: a token, the session of a browser, and the password, the
// signing key and a header of a sink that refuses a message and repeats what it was sent. They are in no page of the console, in nothing that a page
// reads, in no log, trace, metric or event, and in no debug bundle.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth() // a receiver that repeats what it was sent
		http.Error(w, "no such customer "+password+" "+r.Header.Get("X-Key")+" "+r.Header.Get("Authorization"), http.StatusNotFound)
	}))
	t.Cleanup(sink.Close)
	const password, key, header = "planted-password", "cGxhbnRlZC1rZXktd2l0aC1lbm91Z2gtYnl0ZXM=", "planted-header"
	at := "http://user:" + password + "@" + sink.Listener.Addr().String() + "/hook"
	dir, url, token, out := demoWithOutput(t, `
api: {tokens_file: tokens}
telemetry: {log: {level: debug}}
outbox:
  subscriptions:
    - {name: hooks, sink: {kind: webhook, url: "`+at+`", secrets: [whsec_`+key+`], headers: {X-Key: `+header+`}}}
`, "--demo")
	emitd := func(args ...string) {
		cmd := exec.Command(drill.Binary(t), args...)
		cmd.Dir = dir
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("emitd %s: %v\n%s", strings.Join(args, " "), err, said)
		}
	}
	emitd("outbox", "publish", "orders", `{"n":1}`)
	emitd("queue", "enqueue", "default", `{"n":1}`, "--type", "never")
	pages := filepath.Join(dir, "pages")
	play(t, nil, "secrets.mjs", url, token, pages)
	answerTo(t, http.MethodPost, url+"/api/v1/commands", `{"kind": "daemon.pause", "daemon": "demo:crash"}`, token) // an event says who gave it
	emitd("debug", "bundle", "--output", "bundle.tar.gz", "--token-file", "tokens")
	metrics := answerOf(t, url+"/metrics", token)
	said(t, out, regexp.MustCompile(`("SpanContext")`), t.Context().Done()) // traces are exported every few seconds

	secrets := map[string]string{"token": token, "password": password, "signing key": key, "header": header, "session": string(read(t, pages+".cookie"))}
	for where, text := range map[string]string{
		"pages": string(read(t, pages)), "log and traces": out.String(), "debug bundle": unpacked(t, filepath.Join(dir, "bundle.tar.gz")),
		"metrics": metrics, "events": answerOf(t, url+"/api/v1/events?limit=1000", token),
	} {
		for what, secret := range secrets {
			if secret == "" || strings.Contains(text, secret) {
				t.Errorf("the %s has the %s %q", where, what, secret)
			}
		}
		// It looks in the right place if each of these is there.
		if proof := map[string]string{"pages": "no such customer", "log and traces": `"SpanContext"`, "debug bundle": "hooks", "metrics": "emitd_outbox", "events": "operator.pause"}[where]; !strings.Contains(text, proof) {
			t.Errorf("the %s has no %s", where, proof)
		}
	}
}

func answerOf(t *testing.T, url, token string) string {
	t.Helper()
	return answerTo(t, http.MethodGet, url, "", token)
}

// answerTo makes a call that succeeds, and returns its answer.
func answerTo(t *testing.T, method, url, body, token string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s: %v", url, answer.StatusCode, text, err)
	}
	return string(text)
}

// unpacked returns the texts of an archive.
func unpacked(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for archive := tar.NewReader(z); ; {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(entry.Name + "\n")
		if _, err := io.Copy(&all, archive); err != nil {
			t.Fatal(err)
		}
	}
}
