// Package telemetry sets up the program's log, metrics and traces.
//
// The libraries use only the OpenTelemetry API and log/slog; the SDK and the exporters are here. Metrics
// are always served on the listener's /metrics. Beyond that the OTEL_* variables of the OpenTelemetry
// specification are honoured unchanged, with two differences:
//
//   - Nothing is exported unless it is requested. Without OTEL_TRACES_EXPORTER and without an
//     OTEL_EXPORTER_OTLP_*ENDPOINT no collector is used (the specification's default would be one on
//     localhost). The same holds for metrics and logs.
//   - OTEL_METRICS_EXPORTER=prometheus opens no second port, because /metrics serves it.
//
// A log line is text on a terminal and otherwise one JSON object, on standard error. Known secrets are
// replaced in every line.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"time"

	"github.com/lmittmann/tint"

	"github.com/emitd/emitd/internal/admin/fault"
)

// LogOptions configure the log's format.
type LogOptions struct {
	Level   *slog.LevelVar
	Format  string // text, json, auto
	TTY     bool   // decides what auto means
	Colour  bool
	Secrets []string
}

// NewLog returns a handler that writes to w.
func NewLog(w io.Writer, o LogOptions) slog.Handler {
	if len(o.Secrets) > 0 {
		w = redactor{w, o.Secrets}
	}
	if o.Format == "text" || o.Format == "auto" && o.TTY {
		return tint.NewTextHandler(w, &tint.Options{Level: o.Level, NoColor: !o.Colour, TimeFormat: "15:04:05.000", ReplaceAttr: units})
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: o.Level, ReplaceAttr: readable})
}

// units formats durations with their unit and few digits, because a number of nanoseconds is hard to
// read. It also covers durations in a list and named duration types.
func units(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		return slog.String(a.Key, unit(a.Value.Duration()))
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case []time.Duration:
			out := make([]string, len(v))
			for i, d := range v {
				out[i] = unit(d)
			}
			return slog.Any(a.Key, out)
		case *time.Duration:
			if v != nil {
				return slog.String(a.Key, unit(*v))
			}
		case fmt.Stringer:
			if r := reflect.ValueOf(v); r.Kind() == reflect.Int64 {
				return slog.String(a.Key, v.String())
			}
		}
	}
	return a
}

func unit(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d.Abs() >= 10*unit {
			d = d.Round(unit / 10)
			break
		}
	}
	return d.String()
}

// unitHandler formats durations with units, for handlers that do not call units.
type unitHandler struct{ slog.Handler }

// Handle implements [slog.Handler].
func (s unitHandler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(formatDurations(a))
		return true
	})
	return s.Handler.Handle(ctx, out)
}

// WithAttrs implements [slog.Handler].
func (s unitHandler) WithAttrs(as []slog.Attr) slog.Handler {
	out := make([]slog.Attr, len(as))
	for i, a := range as {
		out[i] = formatDurations(a)
	}
	return unitHandler{s.Handler.WithAttrs(out)}
}

// WithGroup implements [slog.Handler].
func (s unitHandler) WithGroup(name string) slog.Handler {
	return unitHandler{s.Handler.WithGroup(name)}
}

// formatDurations formats the durations of an attribute with units, including those of a group.
func formatDurations(a slog.Attr) slog.Attr {
	if a.Value = a.Value.Resolve(); a.Value.Kind() != slog.KindGroup {
		return units(nil, a)
	}
	var out []slog.Attr
	for _, b := range a.Value.Group() {
		out = append(out, formatDurations(b))
	}
	return slog.Attr{Key: a.Key, Value: slog.GroupValue(out...)}
}

// readable formats durations with units, and times as everywhere else.
func readable(groups []string, a slog.Attr) slog.Attr {
	a = units(groups, a)
	if len(groups) == 0 && a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime {
		return slog.String(slog.TimeKey, a.Value.Time().UTC().Format(time.RFC3339Nano))
	}
	return a
}

// Level parses a level of the configuration.
func Level(text string) *slog.LevelVar {
	v := new(slog.LevelVar)
	_ = v.UnmarshalText([]byte(text)) // the configuration accepts only known words
	return v
}

// redactor replaces secrets in the output of handlers, which write one whole line at a time.
type redactor struct {
	w       io.Writer
	secrets []string
}

func (r redactor) Write(line []byte) (int, error) {
	if _, err := io.WriteString(r.w, fault.Redact(string(line), r.secrets...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// coded adds an error's code to the record, so that the log shows it as the command line does.
type coded struct {
	slog.Handler
	code func(error) string
}

// WithCodes returns a handler that adds the code of the attribute error, if code returns one.
func WithCodes(h slog.Handler, code func(error) string) slog.Handler { return coded{h, code} }

func (c coded) Handle(ctx context.Context, r slog.Record) error {
	found := ""
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Key == "error" {
			found = c.code(err)
		}
		return found == ""
	})
	if found != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("code", found))
	}
	return c.Handler.Handle(ctx, r)
}

func (c coded) WithAttrs(as []slog.Attr) slog.Handler { return coded{c.Handler.WithAttrs(as), c.code} }

func (c coded) WithGroup(name string) slog.Handler { return coded{c.Handler.WithGroup(name), c.code} }

// both passes every record to two handlers.
type both [2]slog.Handler

func (b both) Enabled(ctx context.Context, l slog.Level) bool {
	return b[0].Enabled(ctx, l) || b[1].Enabled(ctx, l)
}

func (b both) Handle(ctx context.Context, r slog.Record) error {
	var first error
	for _, h := range b {
		if h.Enabled(ctx, r.Level) {
			if err := h.Handle(ctx, r.Clone()); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

func (b both) WithAttrs(as []slog.Attr) slog.Handler {
	return both{b[0].WithAttrs(as), b[1].WithAttrs(as)}
}

func (b both) WithGroup(name string) slog.Handler {
	return both{b[0].WithGroup(name), b[1].WithGroup(name)}
}
