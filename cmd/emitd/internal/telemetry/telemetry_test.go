package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
)

func TestLog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o    LogOptions
		json bool
	}{
		{LogOptions{Format: "auto"}, true},
		{LogOptions{Format: "auto", TTY: true}, false},
		{LogOptions{Format: "json", TTY: true}, true},
		{LogOptions{Format: "text"}, false},
	} {
		var b strings.Builder
		c.o.Level, c.o.Secrets = Level("warn"), []string{"hunter2"}
		log := slog.New(NewLog(&b, c.o))
		log.Info("not told")
		log.Warn("told", "url", "postgres://u:hunter2@h/d")
		if text := b.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, "hunter2") || !strings.Contains(text, "u:***@h") {
			t.Errorf("%+v: %q", c.o, text)
		}
		var line map[string]any
		if err := json.Unmarshal([]byte(b.String()), &line); (err == nil) != c.json {
			t.Errorf("%+v: JSON %v: %v", c.o, c.json, err)
		} else if c.json && !strings.HasSuffix(line["time"].(string), "Z") {
			t.Errorf("time %v is not UTC", line["time"])
		}
	}
}

func TestCodes(t *testing.T) {
	t.Parallel()
	known := errors.New("known")
	var b strings.Builder
	h := WithCodes(NewLog(&b, LogOptions{Format: "json", Level: Level("info")}), func(err error) string {
		if errors.Is(err, known) {
			return "E0001"
		}
		return ""
	})
	log := slog.New(h).With("a", 1).WithGroup("g")
	log.Info("x", "error", fmt.Errorf("w: %w", known))
	log.Info("x", "error", errors.New("other"), "cause", known)
	lines := strings.Split(b.String(), "\n")
	if !strings.Contains(lines[0], `"code":"E0001"`) || strings.Contains(lines[1], "code") {
		t.Errorf("got %s", b.String())
	}
}

func TestBothHandlers(t *testing.T) {
	t.Parallel()
	var one, two strings.Builder
	h := both{NewLog(&one, LogOptions{Format: "json", Level: Level("info")}), NewLog(&two, LogOptions{Format: "json", Level: Level("debug")})}
	log := slog.New(h).With("a", 1).WithGroup("g")
	log.Debug("not told")
	log.Info("x", "b", 2)
	for _, text := range []string{one.String(), two.String()} {
		if strings.Contains(text, "not told") || !strings.Contains(text, `"a":1`) || !strings.Contains(text, `"g":{"b":2}`) {
			t.Errorf("got %q", text)
		}
	}
}

// TestSecretsInEveryForm checks that secrets are replaced wherever they are in a record, also if a format would escape
// characters of them, and that what has none stays as it is.
func TestSecretsInEveryForm(t *testing.T) {
	t.Parallel()
	const secret = `pa"ss\1`
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		log := slog.New(NewLog(&out, LogOptions{Level: Level("info"), Format: format, Secrets: []string{secret, "hunter2"}}))
		log.With("with", secret).WithGroup("g").Info("message "+secret,
			"text", secret, "error", fmt.Errorf("dial %s", secret), "quoted", fmt.Sprintf("%q", secret), "list", []string{"a", secret},
			"bytes", []byte(secret), slog.Group("inner", "text", secret), "number", 7, "plain", errors.New("as it is"),
			"deep", &struct{ Password *string }{new("hunter2")})
		text := out.String()
		if strings.Contains(text, `ss\`) || strings.Contains(text, "hunter2") || strings.Count(text, "***") < 8 {
			t.Errorf("%s: %s", format, text)
		}
		if !strings.Contains(text, "7") || !strings.Contains(text, "as it is") {
			t.Errorf("%s: too much is gone: %s", format, text)
		}
	}
}

func scrape(tel *Telemetry) string {
	w := httptest.NewRecorder()
	tel.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// count adds one to a counter of the provider.
func count(t *testing.T, p metric.MeterProvider) {
	t.Helper()
	c, err := p.Meter("test").Int64Counter("emitd.test.things", metric.WithUnit("{thing}"))
	if err != nil {
		t.Fatal(err)
	}
	c.Add(context.Background(), 1)
}

// The tests below set the environment, so they are not parallel.

// TestMetrics checks that nodes of one process do not overwrite each other's metrics.
func TestMetrics(t *testing.T) {
	unset(t)
	ctx := context.Background()
	tel, err := New(ctx, Options{Cluster: "c", Version: "v", Instance: "i", Handler: slog.DiscardHandler})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		p, err := tel.Node(ctx, name, "id-"+name)
		if err != nil {
			t.Fatal(err)
		}
		count(t, p)
	}
	text := scrape(tel)
	for _, want := range []string{
		`emitd_test_things_total{node="a"} 1`, `emitd_test_things_total{node="b"} 1`, "go_goroutine_count ",
		`service_instance_id="i"`, `emitd_cluster_name="c"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if err := tel.Close(ctx); err != nil {
		t.Error(err)
	}
}

// unset removes the variables that enable exports.
func unset(t *testing.T) {
	for _, signal := range []string{"TRACES", "METRICS", "LOGS"} {
		t.Setenv("OTEL_"+signal+"_EXPORTER", "")
		t.Setenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT", "")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_SDK_DISABLED", "")
}

func TestNothingIsExportedUnlessConfigured(t *testing.T) {
	unset(t)
	for _, signal := range []string{"TRACES", "METRICS", "LOGS"} {
		if exportRequested(signal) {
			t.Errorf("%s is exported although nobody asked", signal)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
	if !exportRequested("TRACES") || exportRequested("METRICS") {
		t.Error("an endpoint of one signal is another's")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	if !exportRequested("METRICS") {
		t.Error("the common endpoint does not count")
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if exportRequested("TRACES") {
		t.Error("a disabled SDK exports")
	}
}

func TestBadExporter(t *testing.T) {
	for _, signal := range []string{"TRACES", "METRICS", "LOGS"} {
		unset(t)
		t.Setenv("OTEL_"+signal+"_EXPORTER", "carrier-pigeon")
		_, err := New(context.Background(), Options{Handler: slog.DiscardHandler})
		if err == nil || !strings.Contains(err.Error(), "OTEL_"+signal+"_EXPORTER") {
			t.Errorf("%s: %v", signal, err)
		}
	}
	unset(t)
	for _, none := range []string{"TRACES", "METRICS", "LOGS"} {
		t.Setenv("OTEL_"+none+"_EXPORTER", "none")
	}
	tel, err := New(context.Background(), Options{Handler: slog.DiscardHandler})
	if err != nil {
		t.Fatal(err)
	}
	if err := tel.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestExportedLog checks that what is exported by OTLP has no secrets, and only what has the level of the log.
func TestExportedLog(t *testing.T) {
	got := collected(t, "LOGS")
	secrets := []string{"hunter2"}
	tel, err := New(t.Context(), Options{Handler: NewLog(io.Discard, LogOptions{Level: Level("info"), Secrets: secrets}), Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	log := tel.Logger.With("url", "postgres://u:hunter2@h/d")
	log.Debug("not told")
	log.Info("cannot log in with hunter2", "error", errors.New("refused: hunter2"), slog.Group("g", "pause", 90*time.Second, "password", "hunter2"))
	if err := tel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := got.String()
	for word, want := range map[string]bool{"hunter2": false, "not told": false, "cannot log in with ***": true, "refused: ***": true, "u:***@h": true, "1m30s": true} {
		if strings.Contains(text, word) != want {
			t.Errorf("exported %q: %v, want %v: %q", word, !want, want, text)
		}
	}
}

// TestExportedSpans checks that the errors of exported spans have no secrets, wherever they are in the span.
func TestExportedSpans(t *testing.T) {
	got := collected(t, "TRACES")
	tel, err := New(t.Context(), Options{Handler: slog.DiscardHandler, Secrets: []string{"hunter2"}})
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("post https://h/?token=hunter2: refused")
	_, span := tel.Tracer.Tracer("x").Start(t.Context(), "publish", trace.WithAttributes(attribute.String("to", "one hunter2"), attribute.Int("n", 7)))
	span.RecordError(failed)
	span.SetStatus(codes.Error, failed.Error())
	span.End()
	if err := tel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := got.String()
	if strings.Contains(text, "hunter2") || strings.Count(text, "token=***: refused") != 2 || !strings.Contains(text, "one ***") {
		t.Errorf("exported %q", text)
	}
}

// collected returns what is exported of a signal. It may be read when the telemetry is closed.
func collected(t *testing.T, signal string) *bytes.Buffer {
	t.Helper()
	unset(t)
	var mu sync.Mutex
	var got bytes.Buffer
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if _, err := got.ReadFrom(r.Body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_"+signal+"_EXPORTER", "otlp")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	t.Setenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT", collector.URL)
	return &got
}

// TestDurationsHaveUnits checks that every duration in the log has its unit, in each format.
func TestDurationsHaveUnits(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		log := slog.New(NewLog(&out, LogOptions{Level: Level("info"), Format: format})).With("every", 90*time.Second)
		log.Info("x", "restart_in", 100*time.Millisecond, slog.Group("g", "after", 2131505910886*time.Nanosecond), "none", time.Duration(0),
			"list", []time.Duration{15 * time.Millisecond, 4 * time.Second}, "own", config.Duration(7*time.Minute))
		for _, want := range []string{"1m30s", "100ms", "35m31.5s", "0s", "15ms", "4s", "7m0s"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %s in %s", format, want, out.String())
			}
		}
	}
}

// TestDurationsOfOtherHandlers checks that handlers with their own format, such as that of OTLP, get
// durations with units as well.
func TestDurationsOfOtherHandlers(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(withUnits(slog.NewJSONHandler(&out, nil))).With("every", 90*time.Second).WithGroup("w")
	log.Info("x", "in", 100*time.Millisecond, slog.Group("g", "after", 3*time.Second), "n", 5)
	for _, want := range []string{`"every":"1m30s"`, `"in":"100ms"`, `"after":"3s"`, `"n":5`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
}
