// Vulkan's loader with a vkDestroyBuffer that does nothing; load it with RTLD_GLOBAL before the first Vulkan module.
// Mesa 22's software driver looks at every buffer that a descriptor set still names, also where the shader at hand has
// no use for it, which Vulkan allows to be destroyed: ggml's recycled sets then make it read freed memory.

#include <dlfcn.h>
#include <string.h>

typedef void (*function)(void);
typedef function (*get_address)(void * owner, const char * name);

static get_address get_from_device;

static void keep_buffer(void * device, void * buffer, const void * allocator) {
    (void) device;
    (void) buffer;
    (void) allocator;
}

static function get_device_address(void * device, const char * name) {
    return strcmp(name, "vkDestroyBuffer") == 0 ? (function) keep_buffer : get_from_device(device, name);
}

function vkGetInstanceProcAddr(void * instance, const char * name) {
    static get_address get_from_instance;
    if (!get_from_instance) {
        get_from_instance = (get_address) dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetInstanceProcAddr");
    }
    function found = get_from_instance(instance, name);
    if (strcmp(name, "vkDestroyBuffer") == 0) {
        return (function) keep_buffer;
    }
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        get_from_device = (get_address) found;
        return (function) get_device_address;
    }
    return found;
}
