package s3_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/storage/blob/s3"
)

// A bucket of S3, or of a service that speaks its protocol. Credentials come from the environment.
func Example() {
	config, err := s3.ParseURL("s3://my-bucket/emitd?region=eu-central-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	bucket, err := s3.Open(context.Background(), config)
	if err != nil {
		fmt.Println(err)
		return
	}
	o, err := bucket.Read(context.Background(), "reports/1")
	fmt.Println(string(o.Data), err)
}
