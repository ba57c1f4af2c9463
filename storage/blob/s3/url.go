package s3

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/emitd/emitd/internal/address"
)

// ParseURL reads
//
//	s3://bucket/prefix?region=eu-central-1&endpoint=https://host:port&path_style=true&sse=aws:kms&kms_key=ID
//
// where everything after the bucket is optional. It refuses credentials, because logs and ps show
// addresses. Credentials belong in the environment (AWS_ACCESS_KEY_ID, ...) or a role.
func ParseURL(raw string) (Config, error) {
	u, err := address.URL(raw)
	if err != nil || u.Scheme != "s3" || u.Host == "" || u.Opaque != "" {
		return Config{}, errors.New("object store address: want s3://bucket/prefix, and behind it ?region=, endpoint=, path_style=, sse= and kms_key=")
	}
	if u.User != nil {
		return Config{}, errors.New("object store address: it must not contain credentials: use AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role")
	}
	config := Config{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	for name, values := range u.Query() {
		if err := config.set(name, values[len(values)-1]); err != nil {
			return Config{}, fmt.Errorf("object store address s3://%s: %w", u.Hostname(), err)
		}
	}
	return config, config.validate()
}

func (c *Config) set(name, value string) (err error) {
	switch name {
	case "region":
		c.Region = value
	case "endpoint":
		c.Endpoint, err = endpoint(value)
	case "path_style":
		c.PathStyle, err = strconv.ParseBool(value)
		if err != nil {
			err = errors.New("path_style is neither true nor false")
		}
	case "sse":
		c.SSE = value
	case "kms_key":
		c.KMSKey = value
	default:
		err = errors.New("unknown parameter, want region, endpoint, path_style, sse or kms_key")
	}
	return err
}

// endpoint refuses an address with parts that must not appear in errors and logs.
func endpoint(value string) (string, error) {
	u, err := url.Parse(value)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", errors.New("endpoint: want http://host:port or https://host:port")
	}
	if u.User != nil || u.RawQuery != "" {
		return "", errors.New("endpoint: it has neither credentials nor parameters")
	}
	return value, nil
}
