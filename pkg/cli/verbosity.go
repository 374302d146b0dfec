package cli

import (
	"flag"
	"io"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// addVerbosity adds -v, which shows the HTTP requests from level 6 on, as kubectl's does.
func addVerbosity(fs *pflag.FlagSet) {
	var logging flag.FlagSet
	klog.InitFlags(&logging)
	// Libraries log what they also return as errors. Only who asks for logs gets them.
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := logging.Set(name, value); err != nil {
			panic(err) // klog has had these flags from the beginning
		}
	}
	klog.SetOutput(io.Discard)
	klog.SetOutputBySeverity("INFO", asked{}) // every message is written there too
	f := pflag.PFlagFromGoFlag(logging.Lookup("v"))
	f.Shorthand = "v"
	f.Usage = "Number for the log level verbosity; 6 and more show the requests to the API server"
	fs.AddFlag(f)
}

// asked is standard error where -v asks for logs.
type asked struct{}

func (asked) Write(p []byte) (int, error) {
	if !klog.V(1).Enabled() {
		return len(p), nil
	}
	return os.Stderr.Write(p)
}
