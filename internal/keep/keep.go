// Package keep holds modules while they are not used yet.
package keep
import (
 _ "github.com/jackc/pgx/v5/pgxpool"
 _ "github.com/google/uuid"
 _ "modernc.org/sqlite"
 _ "github.com/spf13/cobra"
 _ "github.com/goccy/go-yaml"
 _ "github.com/lmittmann/tint"
 _ "go.opentelemetry.io/otel/sdk/metric"
 _ "go.opentelemetry.io/otel/exporters/prometheus"
 _ "go.opentelemetry.io/contrib/exporters/autoexport"
 _ "go.opentelemetry.io/contrib/instrumentation/runtime"
 _ "go.opentelemetry.io/contrib/bridges/otelslog"
 _ "github.com/exaring/otelpgx"
 _ "github.com/prometheus/client_golang/prometheus/promhttp"
 _ "github.com/rogpeppe/go-internal/testscript"
 _ "go.uber.org/goleak"
 _ "pgregory.net/rapid"
 _ "github.com/anishathalye/porcupine"
 _ "golang.org/x/sync/errgroup"
 _ "golang.org/x/sys/unix"
 _ "github.com/cenkalti/backoff/v5"
 _ "go.opentelemetry.io/otel/trace"
 _ "go.opentelemetry.io/otel/metric"
 _ "github.com/prometheus/common/expfmt"
)

