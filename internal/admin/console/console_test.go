package console

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func call(t *testing.T, method, path string, headers ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var loads = regexp.MustCompile(`(?:src|href)="([^"]*)"`)

// TestThePageHasItsFiles: everything that the page loads is served, by relative addresses and with the right types.
func TestThePageHasItsFiles(t *testing.T) {
	t.Parallel()
	page := call(t, http.MethodGet, "/")
	if page.StatusCode != http.StatusOK || page.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("the page is answered with %s, %s", page.Status, page.Header.Get("Content-Type"))
	}
	all := loads.FindAllStringSubmatch(body(t, page), -1)
	if len(all) != 3 {
		t.Errorf("the page loads %d files, want a script, a style and an icon", len(all))
	}
	for _, m := range all {
		name, relative := strings.CutPrefix(m[1], "./")
		if !relative {
			t.Errorf("the page loads %s, want an address relative to it", m[1])
			continue
		}
		r := call(t, http.MethodGet, "/"+name)
		if text := body(t, r); r.StatusCode != http.StatusOK || text == "" || !Has("/"+name) {
			t.Errorf("%s is answered with %s and %d bytes", name, r.Status, len(text))
		}
	}
}

// TestThePolicyPermitsNothingElse: each file comes with the policy, and the page has no script or style in it.
func TestThePolicyPermitsNothingElse(t *testing.T) {
	t.Parallel()
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		path := "/" + strings.TrimSuffix(name, "index.html")
		h := call(t, http.MethodGet, path).Header
		if p := h.Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'none'") || strings.Contains(p, "unsafe") || strings.Contains(p, "*") {
			t.Errorf("%s has the policy %q", path, p)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may be taken for another type", path)
		}
	}
	page := string(all["index.html"].raw)
	for _, inline := range []string{"<style", "style=", "onload", "javascript:"} {
		if strings.Contains(page, inline) {
			t.Errorf("the page has %s, which the policy forbids", inline)
		}
	}
	if n := strings.Count(page, "<script"); n != 1 || !strings.Contains(page, "></script>") {
		t.Errorf("the page has %d scripts or one with a text", n)
	}
}

func TestFilesAreCompressedAndRevalidated(t *testing.T) {
	t.Parallel()
	const script = "/console/console.js"
	raw := call(t, http.MethodGet, script)
	zipped := call(t, http.MethodGet, script, "Accept-Encoding", "br, gzip;q=0.8")
	if zipped.Header.Get("Content-Encoding") != "gzip" || raw.Header.Get("Content-Encoding") != "" {
		t.Fatalf("encodings are %q and %q", zipped.Header.Get("Content-Encoding"), raw.Header.Get("Content-Encoding"))
	}
	if call(t, http.MethodGet, script, "Accept-Encoding", "gzip;q=0").Header.Get("Content-Encoding") != "" {
		t.Error("it is compressed although the browser refuses that")
	}
	r, err := gzip.NewReader(bytes.NewReader([]byte(body(t, zipped))))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if want := body(t, raw); err != nil || string(text) != want {
		t.Errorf("the compressed script has %d bytes, the script %d: %v", len(text), len(want), err)
	}
	if again := call(t, http.MethodGet, script, "If-None-Match", raw.Header.Get("ETag")); again.StatusCode != http.StatusNotModified || body(t, again) != "" {
		t.Errorf("a browser that has it is answered with %s", again.Status)
	}
}

func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]int{"/index.html": 404, "/console/": 404, "/console/../console.go": 404, "/other": 404} {
		if r := call(t, http.MethodGet, path); r.StatusCode != want {
			t.Errorf("%s is answered with %s, want %d", path, r.Status, want)
		}
	}
	if r := call(t, http.MethodPost, "/"); r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") == "" {
		t.Errorf("POST is answered with %s", r.Status)
	}
	if r := call(t, http.MethodHead, "/"); r.StatusCode != http.StatusOK || body(t, r) != "" {
		t.Errorf("HEAD is answered with %s", r.Status)
	}
	for path, want := range map[string]bool{"/": true, "/console/console.js": true, "/consoles": false, "/api/v1/": false, "": false} {
		if Has(path) != want {
			t.Errorf("Has(%q) is %v", path, !want)
		}
	}
}
