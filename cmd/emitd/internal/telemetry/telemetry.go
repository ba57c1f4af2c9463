package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/contrib/bridges/otelslog"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	promexport "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Options identify the process in its telemetry.
type Options struct {
	Cluster, Version string
	Instance         string       // ID of the node, if the process is one
	Handler          slog.Handler // of the local log; what it has enabled is exported
	Secrets          []string     // replaced in the exported log and spans
}

// Telemetry holds what was set up. Close it last.
type Telemetry struct {
	Logger *slog.Logger
	Tracer trace.TracerProvider
	Meter  metric.MeterProvider // of the process

	opts     Options
	registry *prometheus.Registry
	ends     []func(context.Context) error
}

// New sets up log, traces and metrics.
func New(ctx context.Context, o Options) (*Telemetry, error) {
	t := &Telemetry{opts: o, registry: prometheus.NewRegistry(), Logger: slog.New(o.Handler)}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.Logger.Warn("telemetry", "error", err) }))
	res, err := t.resource(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.traces(ctx, res); err != nil {
		return nil, errors.Join(err, t.Close(ctx))
	}
	if err := t.logs(ctx, res); err != nil {
		return nil, errors.Join(err, t.Close(ctx))
	}
	if err := t.process(ctx, res); err != nil {
		return nil, errors.Join(err, t.Close(ctx))
	}
	return t, nil
}

// process sets up the metrics of the process.
func (t *Telemetry) process(ctx context.Context, res *resource.Resource) (err error) {
	if t.Meter, err = t.meter(ctx, t.registry, res); err != nil {
		return err
	}
	otel.SetMeterProvider(t.Meter)
	if err := runtime.Start(runtime.WithMeterProvider(t.Meter)); err != nil {
		return fmt.Errorf("metrics of the process: %w", err)
	}
	return nil
}

// resource describes the process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
func (t *Telemetry) resource(ctx context.Context) (*resource.Resource, error) {
	attrs := []attribute.KeyValue{
		attribute.String("service.name", "emitd"),
		attribute.String("service.version", t.opts.Version),
		attribute.String("emitd.cluster.name", t.opts.Cluster),
	}
	if t.opts.Instance != "" {
		attrs = append(attrs, attribute.String("service.instance.id", t.opts.Instance))
	}
	res, err := resource.New(ctx, resource.WithAttributes(attrs...), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return res, nil
}

// exportRequested reports whether the export of a signal is requested.
func exportRequested(signal string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	for _, name := range []string{"OTEL_" + signal + "_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return false
}

func (t *Telemetry) traces(ctx context.Context, res *resource.Resource) error {
	t.Tracer = otel.GetTracerProvider()
	if !exportRequested("TRACES") {
		return nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return fmt.Errorf("OTEL_TRACES_EXPORTER: %w", err)
	}
	if autoexport.IsNoneSpanExporter(exporter) {
		return nil
	}
	if len(t.opts.Secrets) > 0 {
		exporter = redactedSpans{exporter, redaction(t.opts.Secrets)}
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	t.Tracer, t.ends = p, append(t.ends, p.Shutdown)
	otel.SetTracerProvider(p)
	return nil
}

func (t *Telemetry) logs(ctx context.Context, res *resource.Resource) error {
	if !exportRequested("LOGS") {
		return nil
	}
	exporter, err := autoexport.NewLogExporter(ctx)
	if err != nil {
		return fmt.Errorf("OTEL_LOGS_EXPORTER: %w", err)
	}
	if autoexport.IsNoneLogExporter(exporter) {
		return nil
	}
	p := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(exporter)), sdklog.WithResource(res))
	t.ends = append(t.ends, p.Shutdown)
	t.Logger = slog.New(both{t.opts.Handler, withUnits(redacted(otelslog.NewHandler("emitd", otelslog.WithLoggerProvider(p)), t.opts.Secrets))})
	return nil
}

// Node returns a provider whose metrics carry the node's name, for several nodes in one process.
func (t *Telemetry) Node(ctx context.Context, name, id string) (metric.MeterProvider, error) {
	own := *t
	own.opts.Instance = id
	res, err := own.resource(ctx)
	if err != nil {
		return nil, err
	}
	return t.meter(ctx, prometheus.WrapRegistererWith(prometheus.Labels{"node": name}, t.registry), res)
}

// meter returns a provider whose metrics are in the registry, and are exported if that is requested.
func (t *Telemetry) meter(ctx context.Context, reg prometheus.Registerer, res *resource.Resource) (metric.MeterProvider, error) {
	prom, err := promexport.New(promexport.WithRegisterer(reg), promexport.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	opts := []sdkmetric.Option{sdkmetric.WithReader(prom), sdkmetric.WithResource(res)}
	if !exportRequested("TRACES") && os.Getenv("OTEL_METRICS_EXEMPLAR_FILTER") == "" {
		// Exemplars refer to traces, and take up to 4 KB for each series of a histogram.
		opts = append(opts, sdkmetric.WithExemplarFilter(exemplar.AlwaysOffFilter))
	}
	if exportRequested("METRICS") && os.Getenv("OTEL_METRICS_EXPORTER") != "prometheus" {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return nil, fmt.Errorf("OTEL_METRICS_EXPORTER: %w", err)
		}
		if !autoexport.IsNoneMetricReader(reader) {
			opts = append(opts, sdkmetric.WithReader(reader))
		}
	}
	p := sdkmetric.NewMeterProvider(opts...)
	t.ends = append(t.ends, p.Shutdown)
	return p, nil
}

// Metrics returns the handler that Prometheus scrapes.
func (t *Telemetry) Metrics() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// ReadMetrics returns the metrics as Prometheus scrapes them.
func (t *Telemetry) ReadMetrics() ([]*dto.MetricFamily, error) { return t.registry.Gather() }

// Close exports what is still buffered, within ctx.
func (t *Telemetry) Close(ctx context.Context) error {
	var errs []error
	for _, end := range t.ends {
		errs = append(errs, end(ctx))
	}
	return errors.Join(errs...)
}
