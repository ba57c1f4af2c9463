//go:build !linux

package host

import "context"

func settle(context.Context) {}
