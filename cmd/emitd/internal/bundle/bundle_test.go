package bundle

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/admin/fault"
)

const secret = "S3CRETS3CRET"

// TestRedact plants a secret in texts of all kinds.
func TestRedact(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"connect to postgres://app:" + secret + "@db/shop failed",
		"postgres://app:" + secret + "%21@h1,h2/shop?sslmode=require",
		"amqp://:" + secret + "@mq",
		"password=" + secret + " user=app",
		"PGPASSWORD='" + secret + "'",
		"exit code 1: API_KEY=" + secret,
		"MAILER_TOKEN: " + secret + "\nnext",
		"Authorization: Bearer " + secret,
		"authorization: " + secret,
		"curl -H 'x: Basic " + secret + "=='",
		`{"password":"` + secret + `","user":"app"}`,
		`{"error":"the server said {\"token\":\"` + secret + `\"}"}`,
		`{"aws_secret_access_key": "` + secret + `"}`,
		"secrets=" + secret + "&x=1",
		"only known by its value: <" + secret + ">",
	} {
		got := Redact(text, "<"+secret+">")
		if strings.Contains(got, secret) || !strings.Contains(got, "***") {
			t.Errorf("%s became %s", text, got)
		}
		if strings.HasPrefix(text, "{") && !json.Valid([]byte(got)) {
			t.Errorf("%s is not JSON any more: %s", text, got)
		}
	}
	for _, text := range []string{
		`{"key":"api.tokens_file","value":"/run/tokens"}`, "acme:reports/0 failed: exit code 1", "https://example.org:7070/path", "emitd_token_bucket_total 7",
		"https://u@example.org/x", "12:30:00 no secret here",
	} {
		if got := Redact(text); got != text {
			t.Errorf("%s became %s", text, got)
		}
	}
}

// TestBundle writes a bundle and reads it again.
func TestBundle(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "b.tar.gz")
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	b, err := Create(name, []string{secret, "a&b\"c"}, now)
	if err != nil {
		t.Fatal(err)
	}
	b.Add("status.txt", "leader a, "+secret+"\n")
	b.Add("status.json", `{"x":"a\u0026b\"c"}`)
	b.Miss("nodes/b", errors.New("does not answer: "+secret))
	if n, err := b.Close(); n != 3 || err != nil || b.Missing() != 1 {
		t.Errorf("%d files, %d missing, %v", n, b.Missing(), err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		text, _ := io.ReadAll(r)
		got[h.Name] = string(text)
	}
	if len(got) != 3 || got["emitd-debug/status.json"] != `{"x":"***"}` || got["emitd-debug/status.txt"] != "leader a, ***\n" || got["emitd-debug/missing.txt"] != "nodes/b: does not answer: ***\n" {
		t.Errorf("%q", got)
	}
	_, err = Create(name, nil, now)
	if f := fault.Of(err); len(f) != 1 || f[0].Code != fault.Usage {
		t.Errorf("it is written again: %v", err)
	}
	if _, err = Create(filepath.Join(name, "x"), nil, now); err == nil {
		t.Error("a file below a file was created")
	}
}
