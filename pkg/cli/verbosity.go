package cli

import (
	"flag"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// addVerbosity adds -v, which shows the HTTP requests from level 6 on, as kubectl's does.
func addVerbosity(fs *pflag.FlagSet) {
	var logging flag.FlagSet
	klog.InitFlags(&logging)
	f := pflag.PFlagFromGoFlag(logging.Lookup("v"))
	f.Shorthand = "v"
	f.Usage = "Number for the log level verbosity; 6 and more show the requests to the API server"
	fs.AddFlag(f)
}
