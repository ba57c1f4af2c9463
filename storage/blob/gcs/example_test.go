package gcs_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/storage/blob/gcs"
)

// A bucket of Google Cloud Storage. Credentials are the application's default ones.
func Example() {
	config, err := gcs.ParseURL("gs://my-bucket/emitd", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	bucket, err := gcs.Open(context.Background(), config)
	if err != nil {
		fmt.Println(err)
		return
	}
	o, err := bucket.Read(context.Background(), "reports/1")
	fmt.Println(string(o.Data), err)
}
