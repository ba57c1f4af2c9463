package telemetry

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// redactedSpans replaces secrets in the spans that an exporter gets: an error, with the address that a call was for, is in
// a span's status, events and attributes.
type redactedSpans struct {
	sdktrace.SpanExporter
	redact func(string) string
}

// ExportSpans implements [sdktrace.SpanExporter].
func (e redactedSpans) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	out := make([]sdktrace.ReadOnlySpan, len(spans))
	for i, s := range spans {
		out[i] = redactedSpan{s, e.redact}
	}
	return e.SpanExporter.ExportSpans(ctx, out)
}

// redactedSpan is a span without secrets.
type redactedSpan struct {
	sdktrace.ReadOnlySpan
	redact func(string) string
}

func (s redactedSpan) Status() sdktrace.Status {
	status := s.ReadOnlySpan.Status()
	status.Description = s.redact(status.Description)
	return status
}

func (s redactedSpan) Attributes() []attribute.KeyValue {
	return s.attributes(s.ReadOnlySpan.Attributes())
}

func (s redactedSpan) Events() []sdktrace.Event {
	events := slices.Clone(s.ReadOnlySpan.Events())
	for i := range events {
		events[i].Attributes = s.attributes(events[i].Attributes)
	}
	return events
}

func (s redactedSpan) attributes(all []attribute.KeyValue) []attribute.KeyValue {
	out := slices.Clone(all)
	for i, a := range out {
		if a.Value.Type() == attribute.STRING {
			out[i].Value = attribute.StringValue(s.redact(a.Value.AsString()))
		}
	}
	return out
}
