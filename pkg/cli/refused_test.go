package cli

import "syscall"

const connRefused = syscall.ECONNREFUSED
